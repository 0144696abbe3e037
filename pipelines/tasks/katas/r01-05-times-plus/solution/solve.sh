#!/bin/sh
cat > solution.py <<'END'
def solve(x):
    return x * 4 + 5
END
touch .finished
