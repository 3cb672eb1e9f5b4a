"""Making a checkpoint of few bits out of one in full precision, in bounded memory."""
