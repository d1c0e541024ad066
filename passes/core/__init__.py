"""What every package needs: errors and texts."""
