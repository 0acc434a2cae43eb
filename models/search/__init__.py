"""Search over the course: sections of its pages, their vectors, and the words that they share with a question."""
