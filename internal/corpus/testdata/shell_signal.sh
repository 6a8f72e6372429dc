trap 'echo got term' TERM
kill -TERM $$
trap 'echo got usr1; trap - TERM; kill -TERM $$' USR1
kill -USR1 $$
echo never
