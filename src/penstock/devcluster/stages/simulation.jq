# Functions shared by the pod stages: how long a simulated pod runs and when it ends. The placeholder
# @simulation@ in a stage is replaced by this file, joined into one line and without the comment lines.
#
# seconds: the number of seconds of a duration such as 90, 5s, 1m30s, 500ms; null for any other text.
def seconds:
  if test("^[0-9]+([.][0-9]+)?$") then tonumber
  elif test("^([0-9]+([.][0-9]+)?(ms|s|m|h|d))+$") then
    [scan("([0-9]+(?:[.][0-9]+)?)(ms|s|m|h|d)")
      | (.[0] | tonumber) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}[.[1]]] | add
  else null end;
# container_s: the run time of a container according to its command; null if the command does not show it.
# Several sleeps in one shell command are added.
def container_s:
  ((.command // []) + (.args // [])) as $words
  | (($words[0] // "") | split("/") | last // "") as $program
  | if ["sleep", "sh", "bash", "ash", "dash", "busybox", "env"] | index($program) then
      ([$words | join(" ")
        | scan("(?:^|[\\s;&|(/])sleep\\s+(infinity|inf|[0-9]+(?:[.][0-9]+)?[smhd]?)(?:[\\s;&|)]|$)") | .[0]
        | if startswith("inf") then infinite else seconds end] | add)
      // (if $words | join(" ") | test("(^|[\\s;&|(/])echo\\s") then 1 else null end)
    elif $program == "echo" then 1
    else null end;
# is_kept: whether a controller keeps the pod running, so that its command does not end it.
def owned_by($kinds): any((.metadata.ownerReferences // [])[]; .kind as $kind | $kinds | index($kind));
def is_kept: owned_by(["ReplicaSet", "StatefulSet", "DaemonSet", "ReplicationController"]);
# run_s: the run time of the pod: its annotation, else the longest run time of its containers' commands, else
# one second for a pod of a Job, and unlimited for other pods.
def run_s:
  ((.metadata.annotations // {})["penstock.dev/sim-run"] // "") as $annotation
  | if $annotation == "inf" then infinite
    elif ($annotation | seconds) != null then $annotation | seconds
    elif is_kept then infinite
    else ([.spec.containers[] | container_s | select(. != null)] | max)
      // (if owned_by(["Job"]) then 1 else infinite end)
    end;
def deadline_s: .spec.activeDeadlineSeconds // infinite;
# begun_s: the start time of the pod. Kubernetes timestamps have whole seconds only, so the stage that starts
# the pod records the exact time in a condition.
def begun_s:
  first(.status.conditions[] | select(.type == "penstock.dev/SimulatedStart") | .message)
  | (.[0:19] + "Z" | fromdate) + ("0" + .[19:23] | tonumber);
def instant:
  (floor | todate | .[0:19]) + "." + ((. - floor) * 1000 + 1000 | floor | tostring | .[1:4]) + "Z";
