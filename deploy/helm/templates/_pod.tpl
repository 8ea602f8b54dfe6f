# SPDX-License-Identifier: Apache-2.0
{{- define "nereid.pod" }}
terminationGracePeriodSeconds: {{ add .Values.exitTimeoutSeconds 15 }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
volumes:
  - name: models
{{- if .Values.models.claim }}
    persistentVolumeClaim: {claimName: {{ .Values.models.claim }}, readOnly: true}
{{- else }}
    persistentVolumeClaim: {claimName: {{ .Release.Name }}-models, readOnly: true}
{{- end }}
  - {name: cache, emptyDir: {sizeLimit: {{ .Values.cacheSize }}}}
  - {name: tmp, emptyDir: {}}
  - {name: shm, emptyDir: {medium: Memory, sizeLimit: {{ .Values.sharedMemory }}}}
{{- if .Values.nodeSelector }}
nodeSelector:
{{ toYaml .Values.nodeSelector | indent 2 }}
{{- end }}
{{- if .Values.tolerations }}
tolerations:
{{ toYaml .Values.tolerations | indent 2 }}
{{- end }}
{{- end }}

{{- define "nereid.container" }}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
resources:
{{ toYaml .Values.resources | indent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: models, mountPath: /models, readOnly: true}
  - {name: cache, mountPath: /cache}
  - {name: tmp, mountPath: /tmp}
  - {name: shm, mountPath: /dev/shm}
env:
  - {name: NEREID_CACHE, value: /cache}
  - {name: HF_HOME, value: /cache/huggingface}
{{- if .Values.hosts.enabled }}
  - name: NEREID_RANKS_KEY
    valueFrom:
      secretKeyRef: {name: {{ .Values.hosts.keySecret }}, key: key}
{{- end }}
{{- end }}

{{- define "nereid.args" }}
- --host=0.0.0.0
- --exit-timeout-secs={{ .Values.exitTimeoutSeconds }}
{{- if .Values.args }}
{{ toYaml .Values.args }}
{{- end }}
{{- end }}

{{- define "nereid.serves" }}
ports:
  - {name: http, containerPort: 8000}
  - {name: grpc, containerPort: 8001}
  - {name: metrics, containerPort: 8002}
# Until it is ready once, only this probe counts.
startupProbe:
  httpGet: {path: /v2/health/ready, port: http}
  periodSeconds: 5
  failureThreshold: {{ div .Values.startupSeconds 5 }}
readinessProbe:
  httpGet: {path: /v2/health/ready, port: http}
  periodSeconds: 5
livenessProbe:
  httpGet: {path: /v2/health/live, port: http}
  periodSeconds: 10
  timeoutSeconds: 5
{{- end }}

{{- define "nereid.rank" }}
{{ include "nereid.pod" . }}
{{- if .Values.hosts.tp }}
# Each pod builds the same engine, and reads of it the files of its own ranks.
initContainers:
  - name: build
    command: [nereid, build]
    args:
      - {{ .Values.model | quote }}
      - --tp_size={{ .Values.hosts.tp }}
      - --pp_size={{ .Values.hosts.pp }}
      - --output_dir=/cache/engine/{{ .Release.Name }}
{{ include "nereid.container" . | indent 4 }}
{{- end }}
containers:
  - name: nereid
    args:
{{- if .Values.hosts.tp }}
      - /cache/engine/{{ .Release.Name }}
      - --tokenizer-dir={{ .Values.model }}
{{- else }}
      - {{ .Values.model | quote }}
{{- end }}
{{ include "nereid.args" . | indent 6 }}
{{ include "nereid.container" . | indent 4 }}
{{- end }}
