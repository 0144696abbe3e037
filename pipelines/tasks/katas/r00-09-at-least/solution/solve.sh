#!/bin/sh
cat > solution.py <<'END'
def solve(x):
    return max(x, 4)
END
touch .finished
