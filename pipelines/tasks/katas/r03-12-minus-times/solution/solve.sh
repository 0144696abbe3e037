#!/bin/sh
cat > solution.py <<'END'
def solve(x):
    return (x - 5) * 6
END
touch .finished
