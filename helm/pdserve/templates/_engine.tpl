{{/* The pod of one engine: a Ray node with one slot, in which the supervisor starts the engine. */}}

{{/* (dict "values" "rdma") */}}
{{- define "pdserve.engineResources" -}}
{{- $devices := dict -}}
{{- with .values.gpu }}{{ if .count }}{{ $_ := set $devices .resourceName (.count | toString) }}{{ end }}{{ end -}}
{{- with .rdma }}{{ if .enabled }}{{ $_ := set $devices .resourceName (.count | toString) }}{{ end }}{{ end -}}
{{- $own := .values.resources -}}
{{- $requests := merge (dict) $devices (default (dict) $own.requests) -}}
{{- $limits := merge (dict) $devices (default (dict) $own.limits) -}}
{{- toYaml (dict "requests" $requests "limits" $limits) -}}
{{- end }}

{{/* (dict "root" "role" "values" "kuberay") */}}
{{- define "pdserve.engineContainer" -}}
{{- $root := .root -}}
{{- $rdma := $root.Values.transfer.rdma -}}
name: engine
image: {{ include "pdserve.image" $root }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
{{- if not .kuberay }}
command: [ray, start, --address={{ include "pdserve.fullname" $root }}-head:6379]
args:
  {{- include "pdserve.rayFlags" (dict "params" (include "pdserve.engineParams" .) "extra" .values.extraRayArgs) | nindent 2 }}
{{- end }}
env:
  {{- include "pdserve.rayEnv" (dict "root" $root "drainSeconds" (add 5 .values.drainSeconds)) | nindent 2 }}
  - {name: PDSERVE_BEAT_FILE, value: /tmp/pdserve.beat}
  {{- range $name, $value := $root.Values.transfer.env }}
  - {name: {{ $name }}, value: {{ $value | quote }}}
  {{- end }}
  {{- with .values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ports:
  {{- include "pdserve.rayContainerPorts" $root | nindent 2 }}
# Up once its Ray node has joined; how long the model loads after that is nobody's concern here.
startupProbe:
  httpGet: {path: /api/local_raylet_healthz, port: ray-agent}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: {{ mul 12 .values.startupMinutes }}
# An engine that serves and whose loop stands still is ended; one that still loads has no file.
livenessProbe:
  exec:
    command: {{ include "pdserve.beats" (dict "minutes" .values.frozenMinutes) }}
  periodSeconds: 30
  timeoutSeconds: 5
  failureThreshold: 2
# Ready means that the engine in this pod has its model and its transport, and its loop turns.
readinessProbe:
  exec:
    command: [sh, -c, '[ -n "$(find /tmp/pdserve.beat -mmin -1)" ]']
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 3
lifecycle:
  postStart:
    exec:
      # /tmp outlives a container that is restarted in its pod.
      command: [rm, -f, /tmp/pdserve.beat]
securityContext:
  {{- $context := deepCopy $root.Values.containerSecurityContext }}
  {{- if $rdma.enabled }}
  {{- $context = mustMergeOverwrite $context (dict "capabilities" (dict "add" (list "IPC_LOCK"))) }}
  {{- end }}
  {{- toYaml $context | nindent 2 }}
resources:
  {{- include "pdserve.engineResources" (dict "values" .values "rdma" $rdma) | nindent 2 }}
volumeMounts:
  {{- include "pdserve.mounts" (dict "values" .values "shmSize" .values.shmSize) | nindent 2 }}
{{- end }}

{{/* (dict "root" "role" "values" "kuberay") */}}
{{- define "pdserve.enginePod" -}}
{{- $root := .root -}}
metadata:
  labels:
    {{- include "pdserve.podLabels" . | nindent 4 }}
  {{- with .values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- include "pdserve.podHead" (merge (dict "graceSeconds" (add 30 .values.drainSeconds)) .) | nindent 2 }}
  {{- with .values.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- if and $root.Values.transfer.rdma.enabled $root.Values.transfer.rdma.hostNetwork }}
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  {{- end }}
  {{- with include "pdserve.fetchContainer" $root }}
  initContainers:
    {{- . | nindent 4 }}
  {{- end }}
  containers:
    - {{- include "pdserve.engineContainer" . | nindent 6 }}
  volumes:
    {{- include "pdserve.volumes" (dict "root" $root "values" .values "files" (list "clusterSecret" "rayToken") "shmSize" .values.shmSize) | nindent 4 }}
{{- end }}
