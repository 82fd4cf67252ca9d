"""What the measuring tools work out themselves."""
