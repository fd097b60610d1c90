# What the stages of pods have in common: how long a simulated pod runs, and until when. Each stage that says
# @simulation@ gets this text in that place, without the lines that begin with a number sign and on one line.
#
# seconds: of a text such as 90, 5s, 1m30s, 500ms; null for any other.
def seconds:
  if test("^[0-9]+([.][0-9]+)?$") then tonumber
  elif test("^([0-9]+([.][0-9]+)?(ms|s|m|h|d))+$") then
    [scan("([0-9]+(?:[.][0-9]+)?)(ms|s|m|h|d)")
      | (.[0] | tonumber) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}[.[1]]] | add
  else null end;
# container_s: how long a container runs by its command; null if the command does not tell. The times of
# several sleeps in one line of a shell are added.
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
# is_kept: whether a controller wants the pod to run for ever, so that its command does not end it.
def owned_by($kinds): any((.metadata.ownerReferences // [])[]; .kind as $kind | $kinds | index($kind));
def is_kept: owned_by(["ReplicaSet", "StatefulSet", "DaemonSet", "ReplicationController"]);
# run_s: how long the pod runs: by its annotation, else by the commands of its containers, the longest; else
# a second if it belongs to a Job, and for ever if not.
def run_s:
  ((.metadata.annotations // {})["penstock.dev/sim-run"] // "") as $told
  | if $told == "inf" then infinite
    elif ($told | seconds) != null then $told | seconds
    elif is_kept then infinite
    else ([.spec.containers[] | container_s | select(. != null)] | max)
      // (if owned_by(["Job"]) then 1 else infinite end)
    end;
def deadline_s: .spec.activeDeadlineSeconds // infinite;
# begun_s: when the pod began to run; times of Kubernetes know whole seconds only, so the stage that starts it
# leaves the exact one in a condition.
def begun_s:
  first(.status.conditions[] | select(.type == "penstock.dev/SimulatedStart") | .message)
  | (.[0:19] + "Z" | fromdate) + ("0" + .[19:23] | tonumber);
def instant:
  (floor | todate | .[0:19]) + "." + ((. - floor) * 1000 + 1000 | floor | tostring | .[1:4]) + "Z";
