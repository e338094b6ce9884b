{{/* What several objects share. */}}

{{- define "roped.name" -}}
{{- $name := ternary .Release.Name (printf "%s-roped" .Release.Name) (contains "roped" .Release.Name) -}}
{{- $name | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{- define "roped.selector" -}}
app.kubernetes.io/name: roped
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "roped.labels" -}}
{{ include "roped.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* MiB of 512m or 2g. */}}
{{- define "roped.mib" -}}
{{- $n := regexFind "^[0-9]+" . | int64 -}}
{{- ternary (mul $n 1024) $n (hasSuffix "g" .) -}}
{{- end }}

{{/* What a pod needs: what its settings allow, and the process itself, of which a driver is the most. */}}
{{- define "roped.memory" -}}
{{- $mib := include "roped.mib" .Values.memory.host | int64 -}}
{{- if eq .Values.backend "cuda" -}}
{{- $mib = add $mib 2048 -}}
{{- else -}}
{{- range list .Values.memory.device .Values.memory.regions .Values.memory.tables -}}
{{- $mib = add $mib (include "roped.mib" . | int64) -}}
{{- end -}}
{{- $mib = add $mib 256 -}}
{{- end -}}
{{ $mib }}Mi
{{- end }}

{{/* The steps of a drain, one second for the last answers, and some for the container. */}}
{{- define "roped.grace" -}}
{{- with .Values.drain -}}{{ add .delay .idle .timeout 9 }}{{- end -}}
{{- end }}

{{/* The container; its name and the port that it serves are what KServe has otherwise. */}}
{{- define "roped.container" -}}
{{- $v := .root.Values -}}
name: {{ .name }}
image: {{ printf "%s:%s" $v.image.repository ($v.image.tag | default (ternary "latest" "cpu" (eq $v.backend "cuda"))) }}
imagePullPolicy: {{ $v.image.pullPolicy }}
env:
- {name: ROPED_LISTEN, value: "0.0.0.0:{{ .port }}"}
# health and metrics without TLS, for the kubelet and Prometheus
- {name: ROPED_ADMIN_LISTEN, value: "0.0.0.0:8001"}
# cuda: a pod whose GPU cannot be used says why and ends; it does not compute on the CPU
- {name: ROPED_BACKEND, value: {{ $v.backend }}}
- {name: ROPED_HOST_BYTES, value: {{ $v.memory.host }}}
- {name: ROPED_DEVICE_BYTES, value: {{ $v.memory.device }}}
- {name: ROPED_REGION_MEMORY, value: {{ $v.memory.regions }}}
- {name: ROPED_TABLE_BUDGET_BYTES, value: {{ $v.memory.tables }}}
- {name: ROPED_DRAIN_DELAY_SECONDS, value: {{ $v.drain.delay | quote }}}
- {name: ROPED_DRAIN_IDLE_SECONDS, value: {{ $v.drain.idle | quote }}}
- {name: ROPED_DRAIN_TIMEOUT_SECONDS, value: {{ $v.drain.timeout | quote }}}
{{- if $v.token.secret }}
- {name: ROPED_BEARER_TOKEN_FILE, value: /run/secrets/roped/token}
{{- end }}
{{- if $v.tls.secret }}
- {name: ROPED_TLS_CERT_FILE, value: /run/secrets/roped-tls/tls.crt}
- {name: ROPED_TLS_KEY_FILE, value: /run/secrets/roped-tls/tls.key}
{{- if $v.tls.clientCa }}
- {name: ROPED_TLS_CLIENT_CA_FILE, value: /run/secrets/roped-tls/ca.crt}
{{- end }}
{{- end }}
{{- if not (hasKey $v.settings "log_format") }}
- {name: ROPED_LOG_FORMAT, value: json}
{{- end }}
{{- range $key, $value := $v.settings }}
- {name: ROPED_{{ upper $key }}, value: {{ ternary $value ($value | toJson) (kindIs "string" $value) | quote }}}
{{- end }}
ports:
- {name: {{ .portName }}, containerPort: {{ .port }}, protocol: TCP}
{{- if eq .portName "http" }}
- {name: admin, containerPort: 8001, protocol: TCP}
{{- end }}
startupProbe:
  httpGet: {path: /v2/health/ready, port: 8001}
  periodSeconds: 1
  failureThreshold: 60
readinessProbe:
  httpGet: {path: /v2/health/ready, port: 8001}
  periodSeconds: 2
  failureThreshold: 1
livenessProbe:
  httpGet: {path: /v2/health/live, port: 8001}
  periodSeconds: 10
  timeoutSeconds: 3
resources:
  requests: {cpu: {{ $v.cpu | quote }}, memory: {{ include "roped.memory" .root }}}
  limits:
    memory: {{ include "roped.memory" .root }}
    {{- if eq $v.backend "cuda" }}
    {{ $v.gpu.resource }}: {{ $v.gpu.count }}
    {{- end }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  capabilities: {drop: [ALL]}
{{- if or $v.token.secret $v.tls.secret }}
volumeMounts:
{{- if $v.token.secret }}
- {name: token, mountPath: /run/secrets/roped, readOnly: true}
{{- end }}
{{- if $v.tls.secret }}
- {name: tls, mountPath: /run/secrets/roped-tls, readOnly: true}
{{- end }}
{{- end }}
{{- end }}

{{/* What the container is in, which a ServingRuntime has, too. */}}
{{- define "roped.pod" -}}
{{- $v := .Values -}}
{{- with $v.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
- {name: {{ . }}}
{{- end }}
{{- end }}
{{- with $v.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $v.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- $gpu := list (dict "key" $v.gpu.resource "operator" "Exists" "effect" "NoSchedule") }}
{{- /* nodes with slices have the taint of whole GPUs */}}
{{- if ne $v.gpu.resource "nvidia.com/gpu" }}
{{- $gpu = append $gpu (dict "key" "nvidia.com/gpu" "operator" "Exists" "effect" "NoSchedule") }}
{{- end }}
{{- with concat (ternary $gpu list (eq $v.backend "cuda")) $v.tolerations }}
tolerations: {{- toYaml . | nindent 0 }}
{{- end }}
{{- if or $v.token.secret $v.tls.secret }}
volumes:
{{- if $v.token.secret }}
- name: token
  secret: {secretName: {{ $v.token.secret }}, items: [{key: {{ $v.token.key }}, path: token}], defaultMode: 0440}
{{- end }}
{{- if $v.tls.secret }}
- name: tls
  secret: {secretName: {{ $v.tls.secret }}, defaultMode: 0440}
{{- end }}
{{- end }}
{{- end }}

{{/* No sudden end: a pod's regions go with it. */}}
{{- define "roped.slowly" -}}
scaleDown:
  stabilizationWindowSeconds: {{ .Values.autoscaling.slowdown }}
  policies: [{type: Pods, value: 1, periodSeconds: 120}]
{{- end }}

{{- define "roped.check" -}}
{{- with .Values -}}
{{- if gt (.autoscaling.min | int) (.autoscaling.max | int) -}}
{{- fail (printf "autoscaling.min: %v, expected at most autoscaling.max, %v" .autoscaling.min .autoscaling.max) -}}
{{- end -}}
{{- if and .tls.clientCa (not .tls.secret) -}}
{{- fail "tls.clientCa: true, expected tls.secret with it: certificates are asked for over TLS alone" -}}
{{- end -}}
{{- if and .kserve.enabled .tls.secret -}}
{{- fail (printf "tls.secret: '%s', expected none with kserve.enabled: KServe's gateway has the certificate" .tls.secret) -}}
{{- end -}}
{{- if and .kserve.enabled (ne .autoscaling.kind "none") -}}
{{- fail (printf "autoscaling.kind: '%s', expected 'none' with kserve.enabled: KServe scales" .autoscaling.kind) -}}
{{- end -}}
{{- if and .kserve.enabled .serviceMonitor.enabled -}}
{{- fail "serviceMonitor.enabled: true, expected false with kserve.enabled: KServe has annotations for Prometheus" -}}
{{- end -}}
{{- end -}}
{{- end }}
