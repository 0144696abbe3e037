#!/bin/sh
cat > solution.py <<'END'
def solve(x):
    return x % 2 + 7
END
touch .finished
