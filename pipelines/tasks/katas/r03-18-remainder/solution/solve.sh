#!/bin/sh
cat > solution.py <<'END'
def solve(x):
    return x % 3 + 5
END
touch .finished
