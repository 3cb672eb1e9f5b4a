"""What the trained model remembers under each policy."""
