{{/* Ray: its environment, its ports, and how it is started on the head and on engines. */}}

{{/* Settled ports, so that network policies can name them. */}}
{{- define "pdserve.rayPorts" -}}
node-manager-port: "6380"
object-manager-port: "6381"
runtime-env-agent-port: "6382"
dashboard-agent-grpc-port: "6383"
dashboard-agent-listen-port: "52365"
metrics-export-port: "8080"
min-worker-port: "10002"
max-worker-port: "10101"
{{- end }}

{{/* (dict "root" "drainSeconds") */}}
{{- define "pdserve.rayEnv" -}}
{{ include "pdserve.commonEnv" .root }}
- {name: RAY_AUTH_MODE, value: token}
- {name: RAY_AUTH_TOKEN_PATH, value: /etc/pdserve/secrets/ray-token}
- {name: RAY_USAGE_STATS_ENABLED, value: "0"}
- {name: RAY_DEDUP_LOGS, value: "0"}
- {name: RAY_DISABLE_FAILURE_SIGNAL_HANDLER, value: "1"}
- {name: RAY_worker_niceness, value: "0"}
- name: RAY_gcs_rpc_server_reconnect_timeout_s
  value: {{ .root.Values.ray.headLossTimeoutSeconds | quote }}
{{- with .drainSeconds }}
- name: RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S
  value: {{ . | quote }}
{{- end }}
{{- end }}

{{/* Parameters of `ray start`, values all text. No engine may land on the head: it offers no slot. */}}
{{- define "pdserve.headParams" -}}
port: "6379"
dashboard-host: 0.0.0.0
dashboard-port: "8265"
num-cpus: "1"
object-store-memory: "104857600"
labels: pd-role=head
{{ include "pdserve.rayPorts" . }}
{{- end }}

{{/* (dict "role" "values") */}}
{{- define "pdserve.engineParams" -}}
num-cpus: "1"
num-gpus: {{ .values.gpu.count | quote }}
object-store-memory: "104857600"
labels: pd-role={{ .role }}
resources: '{"pd_{{ .role }}": 1}'
{{ include "pdserve.rayPorts" . }}
{{- end }}

{{/* Flags of `ray start`. (dict "params" YAML "extra" LIST) */}}
{{- define "pdserve.rayFlags" -}}
- --block
- --node-ip-address=$(POD_IP)
{{- range $name, $value := fromYaml .params }}
- {{ printf "--%s=%s" $name $value | squote }}
{{- end }}
{{- range .extra }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{- define "pdserve.rayContainerPorts" -}}
- {name: ray-node, containerPort: 6380}
- {name: ray-agent, containerPort: 52365}
- {name: ray-metrics, containerPort: 8080}
{{- end }}
