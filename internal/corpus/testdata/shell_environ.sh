env | sort
cat /dev/stdin | wc -c
cd /proc/$$/fd && echo *; cd - >/dev/null
stat -L -c '%F' /proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2
ps -o pgid= -o sid= -p $$ 2>/dev/null | tr -d ' ' | wc -l
# Bash reads these itself: while it waits for a child it blocks and catches
# signals, and when it begins to is a matter of chance.
while IFS= read -r line; do
  case $line in
    SigQ*) ;;
    Sig* | Shd* | Cap* | Umask* | Threads* | NoNew*) echo "$line" ;;
  esac
done </proc/$$/status
read -ra stat </proc/$$/stat
echo "$((stat[0] == stat[4])) $((stat[0] == stat[5])) ${stat[18]}"
