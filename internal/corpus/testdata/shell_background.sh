(sleep 0.01; echo background) &
wait $!
echo "waited $?"
sleep 60 &
test $! -gt 0 && disown
echo end
