#!/bin/sh
cat > solution.py <<'END'
def solve(s):
    return len(s) * 8 + 3
END
touch .finished
