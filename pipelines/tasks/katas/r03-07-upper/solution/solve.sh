#!/bin/sh
cat > solution.py <<'END'
def solve(s):
    return 'b' + s.upper()
END
touch .finished
