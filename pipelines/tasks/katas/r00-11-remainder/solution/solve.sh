#!/bin/sh
cat > solution.py <<'END'
def solve(x):
    return x % 9 + 5
END
touch .finished
