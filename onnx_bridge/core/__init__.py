"""What every package needs: errors, values, atomic writes, locations, bisection."""
