"""The tools of all packages: errors, values, atomic writes, locations, bisection."""
