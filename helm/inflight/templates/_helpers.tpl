{{- define "inflight.fullname" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "inflight.operatorName" -}}
{{- include "inflight.fullname" . }}-operator
{{- end -}}

{{/* The Secret with the operator's key, in its own namespace. */}}
{{- define "inflight.keySecret" -}}
{{- include "inflight.operatorName" . }}-key
{{- end -}}

{{- define "inflight.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "inflight.operatorName" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "inflight.operatorImage" -}}
{{- .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "inflight.engineImage" -}}
{{- .Values.engine.image.repository }}:{{ .Values.engine.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* Labels that select the operator's pods; a Deployment's selector is immutable, so they never change. */}}
{{- define "inflight.selectorLabels" -}}
app.kubernetes.io/name: inflight-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "inflight.labels" -}}
{{ include "inflight.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: inflight
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* What Pod Security "restricted" asks of a pod, and of a container. */}}
{{- define "inflight.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "inflight.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}
