{{/* What the schema cannot say. */}}
{{- define "pdserve.check" -}}
{{- range $role := list "prefill" "decode" }}
{{- $values := index $.Values $role }}
{{- if gt (int $values.replicas) (int $values.maxReplicas) }}
{{- fail (printf "%s.replicas=%v: at most %s.maxReplicas=%v" $role $values.replicas $role $values.maxReplicas) }}
{{- end }}
{{- if and $values.keda.enabled (gt (int $values.keda.minReplicas) (int $values.maxReplicas)) }}
{{- fail (printf "%s.keda.minReplicas=%v: at most %s.maxReplicas=%v" $role $values.keda.minReplicas $role $values.maxReplicas) }}
{{- end }}
{{- if and $values.keda.enabled (eq $.Values.ray.mode "kuberay") }}
{{- fail (printf "%s.keda.enabled=true: KEDA scales StatefulSets; with ray.mode=kuberay set %s.replicas" $role $role) }}
{{- end }}
{{- if and $values.extraRayArgs (eq $.Values.ray.mode "kuberay") }}
{{- fail (printf "%s.extraRayArgs: with ray.mode=kuberay the operator writes Ray's command" $role) }}
{{- end }}
{{- end }}
{{- if and .Values.head.extraRayArgs (eq .Values.ray.mode "kuberay") }}
{{- fail "head.extraRayArgs: with ray.mode=kuberay the operator writes Ray's command" }}
{{- end }}
{{- $owned := list "model" "served_model_name" "prefill" "decode" "host" "port" "ray_address" "secret_file" "endpoint" "bootstrap_port" "start_timeout_s" "drain_s" }}
{{- range $key := keys .Values.settings | sortAlpha }}
{{- if has $key $owned }}{{ fail (printf "settings.%s: the chart sets it" $key) }}{{ end }}
{{- end }}
{{- $owned = list "host" "port" "bootstrap" "model_dir" "model_name" "bind_host" "secret_file" "drain_delay_s" "shutdown_grace_s" "api_key_file" "admin_key_file" "ssl_certfile" "ssl_keyfile" }}
{{- range $key := keys .Values.balancer.settings | sortAlpha }}
{{- if has $key $owned }}{{ fail (printf "balancer.settings.%s: the chart sets it" $key) }}{{ end }}
{{- end }}
{{- range $role := list "head" "prefill" "decode" "balancer" }}
{{- range $key := keys (index $.Values $role).podLabels | sortAlpha }}
{{- if has $key (list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component") }}
{{- fail (printf "%s.podLabels: %s is what the chart selects pods by" $role $key) }}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.balancer.hpa }}
{{- if and .enabled (gt (int .minReplicas) (int .maxReplicas)) }}
{{- fail (printf "balancer.hpa.minReplicas=%v: at most balancer.hpa.maxReplicas=%v" .minReplicas .maxReplicas) }}
{{- end }}
{{- end }}
{{- if and (include "pdserve.modelIsFolder" .) .Values.model.revision }}
{{- fail (printf "model.revision=%q: the folder model.source=%q has none" .Values.model.revision .Values.model.source) }}
{{- end }}
{{- if and (include "pdserve.modelIsFolder" .) (hasPrefix "/models/" .Values.model.source) (eq .Values.model.cache.type "emptyDir") }}
{{- fail (printf "model.source=%q: an emptyDir starts empty; allowed model.cache.type for it are pvc, existingClaim and hostPath" .Values.model.source) }}
{{- end }}
{{- end }}

{{/* Fail unless the API server knows the API. (dict "root" "api" "what" "by") */}}
{{- define "pdserve.need" -}}
{{- if not (.root.Capabilities.APIVersions.Has .api) }}
{{- fail (printf "%s: this cluster has no %s; install %s first (with `helm template`, say --api-versions %s)" .what .api .by .api) }}
{{- end }}
{{- end }}
