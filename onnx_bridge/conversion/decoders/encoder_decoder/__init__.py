"""Converting a model of an encoder and a decoder, exported as several files, as one decoder."""
