"""What the models have read of a conversation, kept on disk."""
