#!/bin/sh
cat > solution.py <<'END'
def solve(x):
    return x % 2 + 6
END
touch .finished
