(sleep 0.05; echo background) &
echo "job $!" | sed 's/[0-9]*$//'
wait
sleep 60 &
disown
echo end
