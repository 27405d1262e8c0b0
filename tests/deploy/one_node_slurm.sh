#!/usr/bin/env bash
# A Slurm of one node, on this machine and for this user only, from the packages slurm-wlm and
# munge of Debian; all its files are below one folder, and its ports are free ones on the loopback.
#
#     tests/deploy/one_node_slurm.sh start FOLDER CPUS MEGABYTES
#     export SLURM_CONF=FOLDER/slurm.conf
#     srun hostname
#     tests/deploy/one_node_slurm.sh stop FOLDER
set -euo pipefail
export PATH="$PATH:/usr/sbin:/sbin"

folder="$(mkdir -p "$2" && cd "$2" && pwd)"

free_ports() {
    python3 -c 'import socket
sockets = [socket.socket() for _ in range(2)]
for one in sockets: one.bind(("127.0.0.1", 0))
print(*(one.getsockname()[1] for one in sockets))'
}

start() {
    local host user control node
    host="$(hostname -s)"
    user="$(id -un)"
    read -r control node < <(free_ports)
    mkdir -p "$folder"/{munge,state,spool,log}
    chmod 0711 "$folder"
    chmod 0700 "$folder/munge"
    head -c 1024 /dev/urandom > "$folder/munge/key"
    chmod 0400 "$folder/munge/key"
    munged --force --key-file="$folder/munge/key" --socket="$folder/munge.socket" \
        --pid-file="$folder/munge/pid" --log-file="$folder/munge/log" \
        --seed-file="$folder/munge/seed"
    cat > "$folder/slurm.conf" <<CONF
ClusterName=onenode
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$control
SlurmdPort=$node
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/log/slurmctld.log
SlurmdLogFile=$folder/log/slurmd.log
# So many CPUs as are asked for, whatever this machine has.
SlurmdParameters=config_overrides
# No systemd, cgroups or accounting are needed.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ScronParameters=enable
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
PreemptType=preempt/none
JobRequeue=1
MinJobAge=600
KillWait=15
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=$3 RealMemory=$4 State=UNKNOWN
PartitionName=main Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF
    echo "IgnoreSystemd=yes" > "$folder/cgroup.conf"
    export SLURM_CONF="$folder/slurm.conf"
    slurmctld -f "$SLURM_CONF"
    slurmd -f "$SLURM_CONF"
    for _ in $(seq 100); do
        if sinfo -h -o %T 2>/dev/null | grep -q -e idle; then return; fi
        sleep 0.3
    done
    echo "the node did not come up:" >&2
    sinfo >&2 || true
    tail -n 20 "$folder"/log/*.log >&2
    stop
    exit 1
}

stop() {
    export SLURM_CONF="$folder/slurm.conf"
    scancel --user="$(id -un)" 2>/dev/null || true
    for name in slurmd.pid slurmctld.pid munge/pid; do
        if [[ -s "$folder/$name" ]]; then kill "$(cat "$folder/$name")" 2>/dev/null || true; fi
    done
}

case "$1" in
    start | stop) "$1" "$@" ;;
    *) echo "start or stop" >&2; exit 2 ;;
esac
