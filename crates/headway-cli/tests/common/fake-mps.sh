#!/bin/sh
# Stands in for nvidia-cuda-mps-control: notes what it is asked in $FAKE_MPS_RECORD, and answers, or does not, as $FAKE_MPS says.
# docs/testing.md says what the real one does; this one does the same.
dir="$CUDA_MPS_PIPE_DIRECTORY"
if [ "$2" = serve ]; then
  [ -p "$dir/born" ] && echo > "$dir/born"
  touch "$dir/control_lock" "$dir/control_privileged"
  sleep 100000 & # the server, which ends only if somebody ends it
  echo $! > "$dir/server"
  mkfifo "$dir/control"
  echo $$ > "$dir/nvidia-cuda-mps-control.pid"
  while :; do
    # If the one who asked before has not closed the pipe yet, it ends without a line.
    read line < "$dir/control" || continue
    case "$line" in quit*) [ "$FAKE_MPS" = stubborn ] || { kill $(cat "$dir/server"); rm "$dir/control"; exit 0; } ;; esac
  done
elif [ "$1" = -d ]; then
  echo "start $dir logs $CUDA_MPS_LOG_DIRECTORY share ${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE-none}" >> "$FAKE_MPS_RECORD"
  case "$FAKE_MPS" in
    fails) echo "Insufficient permissions to start this daemon" >&2; exit 1 ;;
    dies) exit 0 ;;
    hangs) sleep 100000 ;;
  esac
  rm -f "$dir/control" "$dir/born"
  # For a while no process has the daemon's command line: 50 follow one another, each the child of the one before.
  late='[ $1 = 0 ] && exec setsid "$0" -d serve; sleep 0.02; sh -c "$2" "$0" $(($1 - 1)) "$2" &'
  [ "$FAKE_MPS" = late ] && { sh -c "$late" "$0" 50 "$late" & exit 0; }
  # This one returns when the daemon leads a session of its own, and no earlier.
  mkfifo "$dir/born"
  setsid "$0" -d serve &
  read born < "$dir/born"
  rm "$dir/born"
else
  read line
  echo "$line" >> "$FAKE_MPS_RECORD"
  [ "$FAKE_MPS" = deaf ] && sleep 100000
  [ -p "$dir/control" ] || { echo "Cannot find MPS control daemon process"; exit 1; }
  echo "$line" > "$dir/control"
  case "$line" in get_*) sleep 0.2; echo 100.0 ;; esac
fi
