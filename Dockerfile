# The image of `./build.sh image`. BASE has Python and nothing else; site/ has pymq and its packages.
ARG BASE
FROM ${BASE}
COPY site /opt/pymq
# Its user may not write there, so it is compiled here, or it would be at every start.
RUN python3 -m compileall -q /opt/pymq
ENV PYTHONPATH=/opt/pymq PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
RUN mkdir -m 700 /var/lib/pymq && chown 10911:10911 /var/lib/pymq
USER 10911:10911
WORKDIR /var/lib/pymq
EXPOSE 9876 10911
STOPSIGNAL SIGTERM
ENTRYPOINT ["python3", "-m", "pymq.cli"]
# From elsewhere than this machine clients reach it with `--advertise` and the address of the host.
CMD ["up", "--bind", "0.0.0.0", "--advertise", "127.0.0.1", "--store", "/var/lib/pymq"]
