"""What the model learns from: streams as scripts, and questions about them."""
