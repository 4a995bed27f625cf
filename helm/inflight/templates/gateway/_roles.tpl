{{/*
What the gateway reads where the InferenceServices are, and its binding. It writes nothing.
Takes root (the chart's own dot), kind (Role or ClusterRole) and namespace (empty for a ClusterRole).
*/}}
{{- define "inflight.gatewayRole" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .kind }}
metadata:
  name: {{ include "inflight.gatewayName" .root }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "inflight.gatewayLabels" .root | nindent 4 }}
rules:
  - apiGroups: [inflight.dev]
    resources: [inferenceservices]
    verbs: [list, watch]
  - apiGroups: [discovery.k8s.io]
    resources: [endpointslices]
    verbs: [list, watch]
  # The Secrets that services name in spec.gateway.auth.apiKeysSecret, one by one: names of others cannot be listed.
  - apiGroups: [""]
    resources: [secrets]
    verbs: [get]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .kind }}Binding
metadata:
  name: {{ include "inflight.gatewayName" .root }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "inflight.gatewayLabels" .root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .kind }}
  name: {{ include "inflight.gatewayName" .root }}
subjects:
  - kind: ServiceAccount
    name: {{ include "inflight.gatewayServiceAccountName" .root }}
    namespace: {{ .root.Release.Namespace }}
{{- end -}}
