#!/bin/sh
cat > solution.py <<'END'
def solve(s):
    return s.count('e') + 3
END
touch .finished
