#!/bin/sh
cat > solution.py <<'END'
def solve(x):
    return x // 3 - 9
END
touch .finished
