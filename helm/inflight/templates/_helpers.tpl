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

{{/* An image reference. Takes image (with repository, tag and digest) and root (the chart's own dot). */}}
{{- define "inflight.image" -}}
{{- with .image -}}
{{- .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.root.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end -}}

{{- define "inflight.operatorImage" -}}
{{- include "inflight.image" (dict "image" .Values.image "root" .) -}}
{{- end -}}

{{- define "inflight.engineImage" -}}
{{- include "inflight.image" (dict "image" .Values.engine.image "root" .) -}}
{{- end -}}

{{- define "inflight.priorityClassName" -}}
{{- .Values.priorityClassName | default (ternary (include "inflight.operatorName" .) "" .Values.priorityClass.create) -}}
{{- end -}}

{{/* Labels that select the operator's pods; a Deployment's selector is immutable, so they never change. */}}
{{- define "inflight.selectorLabels" -}}
app.kubernetes.io/name: inflight-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "inflight.testLabels" -}}
app.kubernetes.io/name: inflight-operator-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "inflight.labels" -}}
{{ include "inflight.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: inflight
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/*
Checks of checkov that the chart's pods do not pass, each with the reason. Further ones have numbers from 5.
*/}}
{{- define "inflight.checkovSkips" -}}
checkov.io/skip1: CKV_K8S_11=A CPU limit throttles in bursts, also while the node is idle; under contention the request bounds the share.
checkov.io/skip2: CKV_K8S_38=The pod calls the API server; its account has only the rights in the chart.
{{- if not .Values.image.digest }}
checkov.io/skip3: CKV_K8S_43=The digest is that of the image in your registry; set image.digest.
checkov.io/skip4: CKV_K8S_15=Releases have a tag of their own, so a pulled image is the right one, and pods start while the registry is down.
{{- end }}
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
