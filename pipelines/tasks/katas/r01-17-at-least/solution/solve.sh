#!/bin/sh
cat > solution.py <<'END'
def solve(x):
    return max(x, 6)
END
touch .finished
