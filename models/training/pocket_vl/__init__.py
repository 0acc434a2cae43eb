"""How `models/pocket-vl` is made: pictures drawn by code, questions about them, training, evaluation, card."""
