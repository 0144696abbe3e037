#!/bin/sh
cat > solution.py <<'END'
def solve(x):
    return x % 7 + 8
END
touch .finished
