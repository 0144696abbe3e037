#!/bin/sh
cat > solution.py <<'END'
def solve(s):
    return s.replace('e', 'r')
END
touch .finished
