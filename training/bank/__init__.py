"""What is taken from elsewhere, in one file: speech, photographs and letters."""
