read -r a
echo "[$a]"
stat -L -c '%F' /proc/self/fd/0
cat
read -r b || echo "end $?"
