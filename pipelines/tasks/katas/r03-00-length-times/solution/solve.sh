#!/bin/sh
cat > solution.py <<'END'
def solve(s):
    return len(s) * 5 + 2
END
touch .finished
