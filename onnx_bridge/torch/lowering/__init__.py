"""`lower`: a PyTorch module whose forward runs on MIGraphX."""
