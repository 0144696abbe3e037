#!/bin/sh
cat > solution.py <<'END'
def solve(x):
    return (x - 5) * 4
END
touch .finished
