echo before
nosuchcommand x
echo "code $?"
set -u
echo $undefined
echo never
