{{/* The fewest gateway pods. */}}
{{- define "inflight.gatewayReplicas" -}}
{{- with .Values.gateway }}{{ .autoscaling.enabled | ternary .autoscaling.minReplicas .replicas }}{{ end -}}
{{- end -}}

{{- define "inflight.envoyConfigArguments" -}}
{{- with .Values.gateway -}}
- envoy-config
- --output=/run/inflight-gateway/envoy.json
- --relays={{ .relay.processes }}
- --requests-per-second={{ .requestsPerSecondPerClient | int64 }}
{{- range .allowedOrigins }}
- --allowed-origin={{ . }}
{{- end }}
{{- if dig "limits" "memory" "" (.envoy.resources | default dict) }}
- --memory=$(ENVOY_MEMORY)
{{- end }}
{{- if .tls.secretName }}
- --tls-dir=/etc/inflight-gateway/tls
{{- if .tls.only }}
- --port=0
{{- end }}
{{- else if .tls.only }}
{{- fail "gateway.tls.only needs gateway.tls.secretName" }}
{{- end }}
{{- with .jwt }}
{{- if .issuer }}
- --jwt-issuer={{ .issuer }}
{{- range .audiences }}
- --jwt-audience={{ . }}
{{- end }}
- --jwt-tenant-claim={{ .tenantClaim }}
{{- if eq (empty .jwksSecret) (empty .jwksUri) }}
{{- fail "gateway.jwt.issuer needs either gateway.jwt.jwksSecret or gateway.jwt.jwksUri" }}
{{- else if .jwksSecret }}
- --jwks-file=/etc/inflight-gateway/jwks/jwks.json
{{- else }}
- --jwks-uri={{ .jwksUri }}
{{- if .caSecret }}
- --jwks-ca=/etc/inflight-gateway/jwks-ca/ca.crt
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
