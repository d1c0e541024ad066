"""Rules for operators that create, index and rearrange tensors."""
