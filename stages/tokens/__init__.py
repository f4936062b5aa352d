"""The room that turns messages into token ids and says which of them are trained."""
