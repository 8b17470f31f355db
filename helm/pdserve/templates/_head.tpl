{{/* The head's pod: Ray's head, and beside it the supervisor, which hosts the bootstrap service. */}}

{{/* (dict "root" "kuberay" BOOL) */}}
{{- define "pdserve.rayHeadContainer" -}}
{{- $values := .root.Values.head -}}
name: ray
image: {{ include "pdserve.image" .root }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
{{- if not .kuberay }}
# A sidecar: it starts before the supervisor and ends after it.
restartPolicy: Always
command: [ray, start, --head]
args:
  {{- include "pdserve.rayFlags" (dict "params" (include "pdserve.headParams" .root) "extra" $values.extraRayArgs) | nindent 2 }}
{{- end }}
env:
  {{- include "pdserve.rayEnv" (dict "root" .root) | nindent 2 }}
  {{- with $values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ports:
  - {name: gcs, containerPort: 6379}
  - {name: dashboard, containerPort: 8265}
  {{- include "pdserve.rayContainerPorts" .root | nindent 2 }}
startupProbe:
  httpGet: {path: /api/healthz, port: ray-agent}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 90
livenessProbe:
  httpGet: {path: /api/healthz, port: ray-agent}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 6
securityContext:
  {{- toYaml .root.Values.containerSecurityContext | nindent 2 }}
resources:
  {{- toYaml $values.resources | nindent 2 }}
volumeMounts:
  {{- include "pdserve.mounts" (dict "values" $values "shmSize" "on") | nindent 2 }}
{{- end }}

{{/* (dict "root" "kuberay" BOOL) */}}
{{- define "pdserve.supervisorContainer" -}}
{{- $root := .root -}}
{{- $values := $root.Values.head -}}
name: supervisor
image: {{ include "pdserve.image" $root }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
{{- if .kuberay }}
# Nothing orders the two containers here: wait for Ray, then be `pdserve`.
command:
  - sh
  - -c
  - until ray health-check --address "$POD_IP:6379"; do sleep 2; done; exec "$0" "$@"
  - pdserve
  - up
{{- else }}
command: [pdserve, up]
{{- end }}
args:
  - --config=/etc/pdserve/config/up.yaml
  - {{ include "pdserve.flag" (list "--model" (include "pdserve.modelDir" $root)) }}
  - {{ include "pdserve.flag" (list "--served-model-name" (include "pdserve.modelName" $root)) }}
  - --prefill={{ $root.Values.prefill.maxReplicas }}
  - --decode={{ $root.Values.decode.maxReplicas }}
  - --ray-address=auto
  - --secret-file=/etc/pdserve/secrets/cluster-secret
  - --no-endpoint
  - --bootstrap-port=7100
  - --drain-s={{ include "pdserve.drainSeconds" $root }}
  - --start-timeout-s={{ mul 60 (max $root.Values.prefill.startupMinutes $root.Values.decode.startupMinutes) }}
  {{- range $values.extraArgs }}
  - {{ . | quote }}
  {{- end }}
env:
  {{- include "pdserve.rayEnv" (dict "root" $root) | nindent 2 }}
  - {name: PDSERVE_BEAT_FILE, value: /tmp/pdserve.beat}
  {{- with $values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ports:
  - {name: bootstrap, containerPort: 7100}
# Ready means that engines and balancers can find each other here, whether or not any is there yet: that
# port 7100 (1BBC) listens. A connection by the probe would count as a peer without the cluster secret.
readinessProbe:
  exec:
    command: [grep, -q, ':1BBC .* 0A ', /proc/net/tcp, /proc/net/tcp6]
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 3
livenessProbe:
  exec:
    command: {{ include "pdserve.beats" (dict "minutes" 2) }}
  periodSeconds: 30
  timeoutSeconds: 5
  failureThreshold: 2
lifecycle:
  postStart:
    exec:
      # /tmp outlives a container that is restarted in its pod.
      command: [rm, -f, /tmp/pdserve.beat]
securityContext:
  {{- toYaml $root.Values.containerSecurityContext | nindent 2 }}
resources:
  {{- toYaml $values.supervisorResources | nindent 2 }}
volumeMounts:
  {{- include "pdserve.mounts" (dict "values" $values "shmSize" "on") | nindent 2 }}
  - {name: config, mountPath: /etc/pdserve/config, readOnly: true}
{{- end }}

{{/* What the engines get for their requests when the whole cluster ends. */}}
{{- define "pdserve.drainSeconds" -}}
{{- max .Values.prefill.drainSeconds .Values.decode.drainSeconds -}}
{{- end }}

{{/* True while the file is young, and while there is none: a start may be slow. (dict "minutes") */}}
{{- define "pdserve.beats" -}}
[sh, -c, '[ ! -e /tmp/pdserve.beat ] || [ -n "$(find /tmp/pdserve.beat -mmin -{{ .minutes }})" ]']
{{- end }}

{{/* (dict "root" "kuberay" BOOL) */}}
{{- define "pdserve.headPod" -}}
{{- $root := .root -}}
{{- $values := $root.Values.head -}}
metadata:
  labels:
    {{- include "pdserve.podLabels" (dict "root" $root "role" "head" "values" $values) | nindent 4 }}
  annotations:
    checksum/config: {{ include (print $root.Template.BasePath "/config.yaml") $root | sha256sum }}
    {{- with $values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- include "pdserve.podHead" (dict "root" $root "role" "head" "values" $values "graceSeconds" (add 60 (include "pdserve.drainSeconds" $root))) | nindent 2 }}
  # A process that joins Ray looks for the node's own among the processes that it sees.
  shareProcessNamespace: true
  {{- $fetch := include "pdserve.fetchContainer" $root }}
  {{- if .kuberay }}
  {{- with $fetch }}
  initContainers:
    {{- . | nindent 4 }}
  {{- end }}
  containers:
    - {{- include "pdserve.rayHeadContainer" . | nindent 6 }}
    - {{- include "pdserve.supervisorContainer" . | nindent 6 }}
  {{- else }}
  initContainers:
    {{- with $fetch }}
    {{- . | nindent 4 }}
    {{- end }}
    - {{- include "pdserve.rayHeadContainer" . | nindent 6 }}
  containers:
    - {{- include "pdserve.supervisorContainer" . | nindent 6 }}
  {{- end }}
  volumes:
    {{- include "pdserve.volumes" (dict "root" $root "values" $values "files" (list "clusterSecret" "rayToken") "shmSize" "512Mi") | nindent 4 }}
    - name: config
      configMap: {name: {{ include "pdserve.fullname" $root }}-config}
{{- end }}
