"""The comparison of outputs with the reference: tolerances, metrics and judgement."""
